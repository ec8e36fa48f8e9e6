"""What a config file is worth: its entries beside what else could run, at batch sizes on its keys and between them."""
