"""All of K by products, for more rows than K can be factored for; and many landmarks."""
