"""Pages by area. Each module declares its routes when it is imported; `routes.load_pages` imports all of them."""
