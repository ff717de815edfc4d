"""The exhaustive explorer: all states of the model within a small scope, breadth first."""
