"""The hosts, one file each, behind :class:`lib_vram.host.base.Host`."""
