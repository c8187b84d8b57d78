class IPUScope: pass
