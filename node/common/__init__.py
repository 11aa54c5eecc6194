"""What all folders of node/ need: names, paths, configuration, a look at the kernel, messages."""
