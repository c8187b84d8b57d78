"""Published measurements rebuilt as models with their real options, and what the IPU Model says about them."""
