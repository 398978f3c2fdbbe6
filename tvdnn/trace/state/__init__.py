"""Parameters and buffers while a forward is traced: what it reads, changes and computes of them."""
