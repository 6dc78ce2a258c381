package nodesetup

import (
	"crypto/tls"
	"net"
	"net/http"
	"strconv"

	"github.com/balsahq/balsa/node"
	"github.com/balsahq/balsa/node/kubeletapi"
)

func (a Node) kubeletAPI(agent *node.Agent, checks, volumes http.Handler) (*kubeletapi.Server, error) {
	authenticator, err := kubeletapi.NewAuthenticator(a.Client, a.Roots)
	if err != nil {
		return nil, err
	}
	authorizer, err := kubeletapi.NewAuthorizer(a.Client)
	if err != nil {
		return nil, err
	}
	agent.Counters().Register(a.Certificates)
	version, suites := a.Config.TLS.Policy()
	return kubeletapi.New(kubeletapi.Config{
		Backend: agent, NodeName: a.Config.NodeName, Address: net.JoinHostPort("", strconv.Itoa(a.Config.KubeletPort)),
		TLS: &tls.Config{
			MinVersion: version, CipherSuites: suites, GetCertificate: a.Serving, ClientAuth: tls.RequestClientCert,
		},
		Authenticator: authenticator, Authorizer: authorizer, NetCheck: checks, LocalVolumes: volumes, NodeLogs: a.Config.Logs.Handler(a.Config.LogDir), Logger: a.Logger,
		Counters: agent.Counters(), Containers: agent.ContainerMetrics(), Probes: agent.ProbeMetrics(), Debug: a.Debug,
	})
}
