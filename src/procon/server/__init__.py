"""The detector as a service: HTTP, a bounded queue, jobs that survive a restart, and a page for operators.

Needs the extra ``server``; nothing below imports it, and ``procon.server.app`` is where FastAPI begins.
"""
