from . import _kafka_python as _kafka_python  # before anything below imports a module of kafka-python
