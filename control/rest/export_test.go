package rest

import "github.com/balsahq/balsa/raftstore"

// Claimed returns "namespace/name" of the Service that holds an address, "" if none does.
func Claimed(view *raftstore.View, ip string) string {
	if kv := view.Get(ipClaims + canonical(ip)); kv != nil {
		return string(kv.Value)
	}
	return ""
}
