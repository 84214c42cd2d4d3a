"""The work of each peer in each case, one module per peer.

A process imports the module of one peer only, and pays for its imports alone.
"""
