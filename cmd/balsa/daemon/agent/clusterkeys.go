package agent

import (
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
)

// serverTrust returns the CAs that this machine trusts for servers, and its certificate for them.
func (a *agent) serverTrust() join.ClientConfig {
	return join.ClientConfig{Roots: a.trust.Pool, Behind: a.creds.Behind, Certificate: a.creds.Client.GetClientCertificate, Logger: a.log}
}

// followKeys makes this node and its pods follow rotations of the CA and of the
// service-account key. The stream with the list of servers announces them.
func (a *agent) followKeys(pods join.Pods) {
	keys := join.NewKeys(a.creds, a.trust, a.client, pods, a.log)
	a.keys.Store(keys)
	a.parts.Keep("cluster's keys", keys.Run)
	a.parts.Keep("server list", a.followServers)
}

// renewed replaces all connections to servers by new ones with the new certificate.
func (a *agent) renewed() {
	a.set.Renew()
	if err := a.client.Close(); err != nil {
		a.log.Debug("cannot close the connection that was made with the old certificate", "err", err)
	}
	if keys := a.keys.Load(); keys != nil {
		keys.Wake()
	}
}

// learnt saves the servers and the CAs that come with the answer to a renewal.
func (a *agent) learnt(answer *clusterpb.RenewResponse) {
	a.saveServers(membership.AddressBook(answer.Servers))
	if _, err := a.trust.Update(answer.Ca); err != nil {
		a.log.Error("cannot save the CAs of the cluster; this node trusts the ones that it had", "err", err)
	}
}
