"""ProCon inside other frameworks. Each module needs the framework it is named after."""
