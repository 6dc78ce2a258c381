package server

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/cmd/balsa/daemon/nodesetup"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/node/counters"
)

// startNode starts the node of this machine, with in-process clients of the API.
func (s *server) startNode(rt *nodesetup.Runtime) error {
	identity := s.api.Client(control.Identity{User: "system:node:" + s.cfg.NodeName, Groups: []string{"system:nodes"}})
	client, err := kubernetes.NewForConfig(identity)
	if err != nil {
		return err
	}
	serving, err := s.pki.NodeServing(s.cfg.NodeName, []string{s.cfg.NodeName}, append(nodesetup.IPs(&s.cfg.Node, s.nodeIP), net.IPv4(127, 0, 0, 1)))
	if err != nil {
		return err
	}
	registrar, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "balsa:registrar", Groups: []string{"system:masters"}}))
	if err != nil {
		return err
	}
	services, err := kubernetes.NewForConfig(s.api.Client(control.Identity{User: "system:kube-proxy"}))
	if err != nil {
		return err
	}
	metrics, err := nodesetup.NewMetrics(&s.cfg.Node, s.log)
	if err != nil {
		return err
	}
	if err := s.startNodeTunnel(metrics); err != nil {
		return err
	}
	s.parts.Keep("own node's metrics", func(ctx context.Context) error { return s.receiveOwn(ctx, metrics) })
	return nodesetup.Node{
		Registrar: registrar, Services: services,
		Config: &s.cfg.Node, Logger: s.log, Parts: s.parts, Progress: s.progress, Client: client, Rest: identity, NodeIP: s.nodeIP, APIAddresses: s.cfg.APIAddresses(),
		Roots: s.pki.Pool, FollowKeys: s.followPods, Serving: serving.GetCertificate, Runtime: rt, Clock: s.clock, APIReady: s.api.Ready(), Metrics: metrics,
		Debug:        s.debug,
		Certificates: counters.Certificates{ServingUntil: func() time.Time { return serving.Certificate().NotAfter }},
	}.Start()
}
