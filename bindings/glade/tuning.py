"""Which configuration an operation takes: the policy, and the caches of what was measured. docs/tuning.md describes them."""

from glade._glade._tuning import autotune_policy, cache_folder, clear_process_cache, export_cache, import_cache, set_autotune_policy

__all__ = ["autotune_policy", "cache_folder", "clear_process_cache", "export_cache", "import_cache", "set_autotune_policy"]
