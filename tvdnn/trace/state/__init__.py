"""Parameters and buffers while a forward is traced: reads, writes, and tensors computed of them."""
