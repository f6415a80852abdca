# SPDX-License-Identifier: Apache-2.0
"""vLLM's side of Samovar's tiers. See README.md beside this package; the class that vLLM loads is
samovar_vllm.connector.SamovarConnector."""

__version__ = "0.1.0"
