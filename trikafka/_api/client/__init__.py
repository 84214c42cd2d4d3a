"""The parts that all kinds of clients have: service, plugins, guard and opening."""
