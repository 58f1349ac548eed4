"""How letters come back: browse, select, redrive, forward, export, and the journal of a redrive."""
