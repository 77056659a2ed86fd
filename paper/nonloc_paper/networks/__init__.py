"""Networks by name: `build("preresnet20/diffusive-5@2")`."""
