# SPDX-License-Identifier: Apache-2.0
"""What the tests put around the router: clients, workers, engines, and the router as a process."""
