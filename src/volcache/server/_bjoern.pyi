from socket import socket
from wsgiref.types import WSGIApplication

def server_run(sock: socket, wsgi_app: WSGIApplication, /) -> None: ...
