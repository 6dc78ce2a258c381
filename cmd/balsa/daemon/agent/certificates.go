package agent

import (
	"context"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/wallclock"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/node/counters"
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

// certificateMetrics says how long this node's certificates are valid. All are renewed by one request, so its failures count
// for each.
func (a *agent) certificateMetrics() counters.Certificates {
	until := func(c *pki.Credentials) func() time.Time {
		return func() time.Time {
			if cert := c.Certificate(); cert != nil {
				return cert.NotAfter
			}
			return time.Time{}
		}
	}
	return counters.Certificates{
		ClientUntil: until(a.creds.Client), ServingUntil: until(a.creds.Serving),
		ClientErrors: a.creds.Client.Failures, ServingErrors: a.creds.Client.Failures,
	}
}
