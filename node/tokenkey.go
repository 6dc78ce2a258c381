package node

// UseTokenKey has every token of a pod replaced that the key with this ID has not signed; empty leaves all as they are.
func (a *Agent) UseTokenKey(id string) { a.volumes.UseTokenKey(id) }

// TokenKey is the ID of the key that signed all tokens of pods, or of the one to use when there are none; empty when several
// did.
func (a *Agent) TokenKey() string { return a.volumes.TokenKey() }

// TokenKeyChanged is closed when the answer of TokenKey may have changed after the call.
func (a *Agent) TokenKeyChanged() <-chan struct{} { return a.volumes.TokenKeyChanged() }
