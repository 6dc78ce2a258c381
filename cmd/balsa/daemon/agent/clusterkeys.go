package agent

import (
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

// serverTrust is whom this machine believes to be a server, and what it shows.
func (a *agent) serverTrust() join.ClientConfig {
	return join.ClientConfig{Roots: a.trust.Pool, Behind: a.creds.Behind, Certificate: a.creds.Client.GetClientCertificate, Logger: a.log}
}

// followKeys has this node and its pods follow rotations of the cluster's keys,
// which the list of servers announces.
func (a *agent) followKeys(pods join.Pods) {
	keys := join.NewKeys(a.creds, a.trust, a.client, pods, a.log)
	a.keys.Store(keys)
	a.parts.Keep("cluster's keys", keys.Run)
	a.parts.Keep("server list", a.followServers)
}

// renewed has every connection made anew, with the new certificate.
func (a *agent) renewed() {
	a.set.Renew()
	if err := a.client.Close(); err != nil {
		a.log.Debug("cannot close the connection that was made with the old certificate", "err", err)
	}
	if keys := a.keys.Load(); keys != nil {
		keys.Wake()
	}
}

// learnt takes what the answer to a renewal tells.
func (a *agent) learnt(answer *clusterpb.RenewResponse) {
	a.learn(membership.AddressBook(answer.Servers))
	if _, err := a.trust.Update(answer.Ca); err != nil {
		a.log.Error("the CAs of the cluster cannot be kept; this node trusts those that it knew", "err", err)
	}
}
