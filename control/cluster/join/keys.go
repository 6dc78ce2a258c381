package join

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/auth/rotation"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
)

// Pods are the pods of this node, whose tokens another key may have to sign.
type Pods interface {
	// UseTokenKey has every token replaced that the key with this ID has not signed; empty leaves all as they are.
	UseTokenKey(id string)
	// TokenKey is the ID of the key that signed all tokens of pods, or of the one to use when there are none; empty when several did.
	TokenKey() string
	// TokenKeyChanged is closed when the answer of TokenKey may have changed after the call.
	TokenKeyChanged() <-chan struct{}
}

// Keys makes an agent follow a rotation of the cluster's keys: it trusts what the servers announce, renews its certificates and
// its pods' tokens with the keys that sign now, and confirms each step.
type Keys struct {
	agent  *Agent
	trust  *Trust
	client *Client
	pods   Pods
	log    *slog.Logger
	wake   chan struct{} // of one place

	mu     sync.Mutex // guards wanted
	wanted rotation.Wanted
}

// NewKeys starts nothing.
func NewKeys(agent *Agent, trust *Trust, client *Client, pods Pods, log *slog.Logger) *Keys {
	return &Keys{agent: agent, trust: trust, client: client, pods: pods, log: log, wake: make(chan struct{}, 1)}
}

// Announced takes what a server says: see Client.FollowServers.
func (k *Keys) Announced(list *clusterpb.ServerList) {
	if changed, err := k.trust.Update(list.Ca); err != nil {
		k.log.Error("the CAs that the servers announce are not taken; a rotation waits for this node", "err", err)
	} else if changed {
		k.log.Info("this node trusts other CAs from now on", "pins", k.trust.Pins())
	}
	k.mu.Lock()
	k.wanted = rotation.Wanted{IssuedBy: list.IssuedBy, PodsHold: list.PodsHold}
	k.mu.Unlock()
	k.Wake()
}

// Wake has Run look now: a certificate was renewed.
func (k *Keys) Wake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run does what is announced and confirms it, until ctx ends.
func (k *Keys) Run(ctx context.Context) error {
	var confirmed rotation.Holds
	pause := retryFirst
	for {
		pods := k.pods.TokenKeyChanged() // before looking
		k.follow()
		var retry <-chan time.Time
		if now := k.holds(); !now.Equal(confirmed) {
			err := k.confirm(ctx, now)
			if status.Code(err) == codes.Canceled && ctx.Err() == nil { // Client.Close: the certificate was renewed meanwhile
				err = k.confirm(ctx, now)
			}
			if err == nil {
				confirmed, pause = now, retryFirst
			} else if ctx.Err() == nil {
				k.log.Warn("this node could not confirm which keys it has in use; a rotation waits for that", "err", err, "again_in", pause)
				retry = time.After(pause)
				pause = min(2*pause, retryLast)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		case <-pods:
		case <-retry:
		}
	}
}

// follow has renewed what is not as announced.
func (k *Keys) follow() {
	k.mu.Lock()
	wanted := k.wanted
	k.mu.Unlock()
	if wanted.IssuedBy != "" && k.issuedBy() != wanted.IssuedBy {
		k.agent.Client.RenewSoon()
	}
	k.pods.UseTokenKey(wanted.PodsHold)
}

func (k *Keys) issuedBy() string {
	a := k.agent
	return k.trust.issuer(a.Client.Certificate(), a.Serving.Certificate(), a.Services.Certificate())
}

func (k *Keys) holds() rotation.Holds {
	return rotation.Holds{Trusts: k.trust.Pins(), IssuedBy: k.issuedBy(), PodsHold: k.pods.TokenKey()}
}

func (k *Keys) confirm(ctx context.Context, h rotation.Holds) error {
	return k.client.Do(ctx, func(ctx context.Context, c clusterpb.ClusterClient) error {
		_, err := c.ConfirmKeys(ctx, &clusterpb.ConfirmKeysRequest{Trusts: h.Trusts, IssuedBy: h.IssuedBy, PodsHold: h.PodsHold})
		return err
	})
}
