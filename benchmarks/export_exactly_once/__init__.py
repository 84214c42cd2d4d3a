"""An exporter that is killed again and again while records come and brokers die: what a reader sees, at every moment."""
