package server

import (
	"context"

	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/overlay/ingress"
	"github.com/balsahq/balsa/overlay/ingress/gatewayapi"
)

// ingressStatus returns the controller that writes the status of Ingresses and Gateways. The leader runs it.
func (s *server) ingressStatus(env workqueue.Env) (workqueue.Runner, error) {
	return ingress.NewStatus(ingress.StatusConfig{
		Client: env.Client, Rest: env.Rest, Secrets: env.Reader, Informers: env.Informers, Events: env.Events, Logger: env.Log,
		HTTPPort: uint16(s.cfg.Ingress.HTTPPort), HTTPSPort: uint16(s.cfg.Ingress.HTTPSPort),
	})
}

// startGatewayAPI installs the Gateway API's definitions when --gateway-api is given.
func (s *server) startGatewayAPI() {
	if !s.cfg.GatewayAPI {
		return
	}
	s.parts.Keep("Gateway API", func(ctx context.Context) error {
		if !lifecycle.Await(ctx, s.api.Ready()) {
			return nil
		}
		client := s.api.Client(control.Identity{User: "balsa:installer", Groups: []string{"system:masters"}})
		if err := gatewayapi.Install(ctx, client); err != nil && ctx.Err() == nil {
			s.log.Error("cannot install the Gateway API's definitions; the next start tries again", "err", err)
		}
		<-ctx.Done()
		return nil
	})
}
