"""The detector as a service: HTTP, a bounded queue, jobs that survive a restart, and a page for operators.

Needs the extra ``server``; no other package imports this one, and only its own modules import FastAPI.
"""
