"""What a kind is: the registry, ATen overloads as kinds, and what every graph may rely on."""
