"""The frame of every client: its service, plugins, guard and opening. It knows no kind of client."""
