"""Python around a traced forward: builtins, values outside the network, side effects, outputs."""
