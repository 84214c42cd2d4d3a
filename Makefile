# Two commands to begin with: `make demo` and `make test`. They need Python 3.11+ (with venv and pip) and Java 17+.
# ARGS go to what is run: make test ARGS="-k wire", make bench ARGS="--records 100000", make chaos ARGS="--seed 7".

PYTHON ?= python3
# scripts/environment.py makes an environment, and not again while a program runs in it.
DEMO := $(PYTHON) scripts/environment.py run demo
TEST := $(PYTHON) scripts/environment.py run test
# Plugins are imported from their folders: a type checker does not follow editable installs.
export MYPYPATH := plugins/trikafka-broker:plugins/trikafka-export:plugins/trikafka-spark:examples

# Where bytecode is not kept, each of the hundreds of programs that tests start compiles trikafka, and each process of
# pytest all tests. Empty is as good as unset.
export PYTHONDONTWRITEBYTECODE :=

#: One release of each line that trikafka supports; the oldest and the last two are in `make test` too.
BROKERS ?= 3.3.2 3.9.1 4.0.0 4.1.1 4.3.1 4.4.0

#: The PySpark that `make test-spark` runs the plugin's tests on, beside the locked one of `make test`.
SPARK ?= 4.3.0

#: Of pytest, which share the tests (conftest.py); ARGS="-n 0" keeps all in one, in the order of the files. The tests with
#: brokers wait for a part of their time, so there are more processes than processors. Two slow processors have no idle
#: moment with four, and then a fifth only makes the tests with brokers slower. Each takes up to 2 GB of memory.
PROCESSES ?= 4

.PHONY: help demo test test-brokers test-spark lint style format types pytest fuzz bench chaos exactly-once export-exactly-once stream-exactly-once share-chaos share-interop smoke generated docs locks wheels clean python env-demo env-test

help:
	@echo 'make demo    a real Kafka, a year of flights through it, Spark behind it (first run: a few minutes)'
	@echo 'make test    all tests, with the checks of style and types'
	@echo 'make test-brokers   the main paths against Kafka 3.3 to 4.4 (first run: downloads 50 MB a version)'
	@echo 'make lint    only the checks of style and types'
	@echo 'make format  the code in the one layout that `make lint` accepts (ruff, 100 columns)'
	@echo 'make test-spark      the Spark plugin'"'"'s tests on another PySpark, by default 4.3.0 (first run: downloads 400 MB)'
	@echo 'make fuzz    the record path'"'"'s tests and five minutes of mutated batches, under sanitizers (needs gcc)'
	@echo 'make bench   the clients beside each other, some 25 minutes (docs/benchmarks.md)'
	@echo 'make chaos   a million records while three brokers are killed, frozen and cut off, five minutes (docs/chaos.md)'
	@echo 'make exactly-once  sixty workers and ten brokers killed while records are read, processed and written in transactions'
	@echo 'make export-exactly-once  twenty exporters and four brokers killed while five million records come, and a reader all the while'
	@echo 'make stream-exactly-once  a Spark stream from topic to topic, killed ten times, driver and JVM and workers'
	@echo 'make share-chaos  a share group of eight members, while members and brokers are killed, frozen and lose their leaders'
	@echo 'make share-interop  trikafka, Java and franz-go in one share group (needs Go 1.26 and javac)'
	@echo 'make smoke   a quick look at the rates, and Kafka to Parquet beside Spark'"'"'s own connector'
	@echo 'make docs    build the documentation site, docs/_site/index.html'
	@echo 'make generated  rewrite what is made from the code: docs/settings*.md, the types of settings and of the package'
	@echo 'make locks   rewrite which packages the environments are made of, with their hashes (needs uv)'
	@echo 'make wheels  a source package and wheels in dist/, each tried in an environment of its own'
	@echo 'make clean   remove environments and whatever was built (downloads in the cache stay)'

demo: env-demo
	@$(DEMO) python examples/flights.py $(ARGS)

# First, what would delay tests later: each process of pytest would compile the tests, and the first that starts Spark
# would write its archive of classes. The types are checked while the tests run, which wait for brokers now and then.
test: env-test style
	@{ $(TEST) python plugins/trikafka-spark/tests/quick_spark.py & \
		$(TEST) python -m pytest -n 0 --collect-only -qq; wait; } > /dev/null 2>&1
	@$(MAKE) --no-print-directory types & types=$$!; \
		$(MAKE) --no-print-directory pytest; tests=$$?; wait $$types && exit $$tests

lint: style types

style: env-test
	@$(TEST) ruff check .
	@$(TEST) ruff format --check --quiet . || (echo 'Run `make format`.'; exit 1)

format: env-test
	@$(TEST) ruff format .

types: env-test
	@$(TEST) mypy --strict -p trikafka -p trikafka_broker -p trikafka_export -p trikafka_spark -p pyspark_trikafka \
		-p flights -p benchmarks

pytest: env-test
	@$(TEST) python -m pytest -n $(PROCESSES) --durations=10 $(ARGS)

test-brokers: env-test
	@for version in $(BROKERS); do \
		echo "Kafka $$version"; \
		$(TEST) python -m pytest -q tests/live/test_broker_versions_live.py --kafka-version $$version $(ARGS) || exit 1; \
	done

test-spark: env-test .spark/$(SPARK)
	@PYTHONPATH=$(CURDIR)/.spark/$(SPARK) $(TEST) python -m pytest -q plugins/trikafka-spark/tests $(ARGS)

.spark/%:
	@rm -rf $@.new
	@$(TEST) python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target $@.new pyspark==$*
	@mv $@.new $@

fuzz: env-test
	@$(TEST) python tests/wire/sanitized.py -m pytest -q tests/wire tests/producer/test_arrow_rows.py tests/producer/test_append_fast_path.py
	@$(TEST) python tests/wire/sanitized.py tests/wire/fuzz.py --seconds 300 $(ARGS)

bench: env-test
	@$(TEST) python -m benchmarks $(ARGS)

chaos: env-test
	@$(TEST) python -m benchmarks.chaos $(ARGS)

exactly-once: env-test
	@$(TEST) python -m benchmarks.exactly_once $(ARGS)

export-exactly-once: env-test
	@$(TEST) python -m benchmarks.export_exactly_once $(ARGS)

stream-exactly-once: env-test
	@$(TEST) python -m benchmarks.stream_exactly_once $(ARGS)

share-chaos: env-test
	@$(TEST) python -m benchmarks.share_chaos $(ARGS)

share-interop: env-test
	@$(TEST) python -m benchmarks.share_interop

smoke: env-test
	@$(TEST) python benchmarks/smoke.py $(ARGS)

generated: env-test
	@$(TEST) python scripts/generate.py

# Sphinx checks each link within the site; the few addresses outside cannot be tried without a network.
docs: env-test
	@$(TEST) python -m sphinx -q -W --keep-going -b html docs docs/_site
	@echo 'docs/_site/index.html'

locks:
	@for name in build demo test kerberos wheels; do \
		uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
			--no-emit-package trikafka --no-emit-package trikafka-broker --no-emit-package trikafka-export --no-emit-package trikafka-spark \
			locks/$$name.in --output-file locks/$$name.txt $(ARGS) || exit 1; \
	done

wheels: env-test
	@$(TEST) python scripts/wheels.py $(ARGS)

clean:
	rm -rf .venv-demo .venv-test .spark build dist docs/_site plugins/*/build *.egg-info plugins/*/*.egg-info demo-out benchmarks/out
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis plugins/*/.pytest_cache
	rm -f trikafka/*/_native*.so trikafka/*/_native.c

env-demo env-test: env-%: python
	@$(PYTHON) scripts/environment.py $*

python:
	@command -v $(PYTHON) >/dev/null || { echo 'Error: no $(PYTHON) here: install Python 3.11 or newer' >&2; exit 1; }
