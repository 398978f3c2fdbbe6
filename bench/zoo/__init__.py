"""torchvision's and timm's convolutional networks: their steps beside torch, and their plans."""
