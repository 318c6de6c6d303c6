"""The HTTP server: `app.create_app` makes it, `listen.uvicorn_config` puts it on a socket."""
