"""The laws, one file a topic. None of these files imports Z3: they say what holds, in the words of ``arith``."""
