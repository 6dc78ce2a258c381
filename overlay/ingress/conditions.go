package ingress

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	netv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gw "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/balsahq/balsa/overlay/ingress/plan"
)

func ingressStatus(at []string) (out []netv1.IngressLoadBalancerIngress) {
	for _, a := range at {
		out = append(out, netv1.IngressLoadBalancerIngress{IP: a})
	}
	return out
}

func sameIngressStatus(a, b []netv1.IngressLoadBalancerIngress) bool {
	return slices.EqualFunc(a, b, func(x, y netv1.IngressLoadBalancerIngress) bool {
		return x.IP == y.IP && x.Hostname == y.Hostname && len(x.Ports) == len(y.Ports)
	})
}

// writeGateways writes the statuses of Gateway API objects that differ from the plan.
func (s *Status) writeGateways(ctx context.Context, p *plan.Plan, o *plan.Objects, at []string) error {
	var errs []error
	for _, c := range p.Classes {
		next := c.DeepCopy()
		setConditions(&next.Status.Conditions, []metav1.Condition{{
			Type: string(gw.GatewayClassConditionStatusAccepted), Status: metav1.ConditionTrue, ObservedGeneration: c.Generation,
			Reason: string(gw.GatewayClassReasonAccepted), Message: "served by the nodes",
		}})
		if !equality.Semantic.DeepEqual(c.Status, next.Status) {
			errs = append(errs, s.writeStatus(ctx, "gatewayclasses", next))
		}
	}
	for _, g := range p.Gateways {
		next := g.Gateway.DeepCopy()
		gatewayStatus(&next.Status, g, at)
		if !equality.Semantic.DeepEqual(g.Gateway.Status, next.Status) {
			errs = append(errs, s.writeStatus(ctx, "gateways", next))
		}
	}
	ours := map[string][]gw.RouteParentStatus{}
	for _, r := range p.Routes {
		ours[r.Kind+"/"+r.Namespace+"/"+r.Name] = r.Parents
	}
	for _, r := range o.HTTPRoutes {
		next := r.DeepCopy()
		next.Status.Parents = parents(r.Status.Parents, ours["HTTPRoute/"+r.Namespace+"/"+r.Name])
		if !equality.Semantic.DeepEqual(r.Status, next.Status) {
			errs = append(errs, s.writeStatus(ctx, "httproutes", next))
		}
	}
	for _, r := range o.GRPCRoutes {
		next := r.DeepCopy()
		next.Status.Parents = parents(r.Status.Parents, ours["GRPCRoute/"+r.Namespace+"/"+r.Name])
		if !equality.Semantic.DeepEqual(r.Status, next.Status) {
			errs = append(errs, s.writeStatus(ctx, "grpcroutes", next))
		}
	}
	return errors.Join(errs...)
}

// writeStatus writes an object's status.
func (s *Status) writeStatus(ctx context.Context, resource string, o interface {
	runtime.Object
	metav1.Object
}) error {
	return tolerable(s.writer.Put().NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").Resource(resource).Name(o.GetName()).
		SubResource("status").Body(o).Do(ctx).Error())
}

// setConditions sets the conditions. A condition keeps its lastTransitionTime unless its status changes.
func setConditions(in *[]metav1.Condition, want []metav1.Condition) {
	for _, c := range want {
		meta.SetStatusCondition(in, c)
	}
}

// gatewayStatus sets a Gateway's status from the plan.
func gatewayStatus(status *gw.GatewayStatus, g plan.GatewayState, at []string) {
	conditions := slices.Clone(g.Conditions)
	if len(at) == 0 {
		for i := range conditions {
			if conditions[i].Type == string(gw.GatewayConditionProgrammed) && conditions[i].Status == metav1.ConditionTrue {
				conditions[i].Status, conditions[i].Reason = metav1.ConditionFalse, string(gw.GatewayReasonAddressNotAssigned)
				conditions[i].Message = "no node that serves Gateways is ready"
			}
		}
	}
	setConditions(&status.Conditions, conditions)
	kind := gw.IPAddressType
	status.Addresses = nil
	for _, a := range at {
		if _, err := netip.ParseAddr(a); err == nil {
			status.Addresses = append(status.Addresses, gw.GatewayStatusAddress{Type: &kind, Value: a})
		}
	}
	before := status.Listeners
	status.Listeners = nil
	for _, l := range g.Listeners {
		var kept []metav1.Condition
		if i := slices.IndexFunc(before, func(b gw.ListenerStatus) bool { return b.Name == l.Name }); i >= 0 {
			kept = slices.Clone(before[i].Conditions)
		}
		setConditions(&kept, l.Conditions)
		l.Conditions = kept
		status.Listeners = append(status.Listeners, l)
	}
}

// parents returns a route's parent statuses: those of other controllers unchanged, then this controller's.
func parents(before, ours []gw.RouteParentStatus) (out []gw.RouteParentStatus) {
	for _, p := range before {
		if p.ControllerName != plan.GatewayController {
			out = append(out, p)
		}
	}
	for _, p := range ours {
		var kept []metav1.Condition
		for _, b := range before {
			if b.ControllerName == plan.GatewayController && equality.Semantic.DeepEqual(b.ParentRef, p.ParentRef) {
				kept = slices.Clone(b.Conditions)
			}
		}
		// Conditions that no longer apply are removed; those that still apply keep their time.
		kept = slices.DeleteFunc(kept, func(c metav1.Condition) bool { return meta.FindStatusCondition(p.Conditions, c.Type) == nil })
		setConditions(&kept, p.Conditions)
		p.Conditions = kept
		out = append(out, p)
	}
	return out
}
