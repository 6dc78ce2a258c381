package agent

import (
	"context"

	"github.com/balsahq/balsa/cmd/balsa/daemon/wallclock"
)

// startCertificates renews this node's certificates from any server before they expire, and checks them again when the
// wall clock is set. The answers also carry the list of servers and the
// trusted CAs, which are saved.
func (a *agent) startCertificates() {
	// One answer renews all certificates of this node, and the client's is installed last: all are new when Notify calls.
	a.creds.Client.Notify(a.renewed)
	a.clock = wallclock.New(a.log)
	a.clock.Notify(a.creds.Wake)
	a.parts.Keep("clock", a.clock.Run)
	a.parts.Keep("certificates", func(ctx context.Context) error {
		defer a.client.Close()
		return a.creds.Run(ctx, a.client, a.addresses, a.learnt)
	})
}
