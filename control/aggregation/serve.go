package aggregation

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"

	"github.com/balsahq/balsa/control/openapi"
)

// table says which target serves which group version. It is immutable.
type table struct {
	routes map[schema.GroupVersion]route
	groups map[string]*metav1.APIGroup // groups with a version in routes: their plain discovery documents
}

// route leads to the target of one group version.
type route struct {
	target    *target
	name      string                                 // of the APIService
	available *apiregistrationv1.APIServiceCondition // nil: not checked yet
}

// usable returns nil if the target is available, otherwise the error for the client.
func (r route) usable() error {
	switch c := r.available; {
	case r.target.fault != nil:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("APIService %s is not available: %v", r.name, r.target.fault))
	case c == nil:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("APIService %s has not been checked yet", r.name))
	case c.Status != apiregistrationv1.ConditionTrue:
		return apierrors.NewServiceUnavailable(fmt.Sprintf("APIService %s is not available: %s: %s", r.name, c.Reason, c.Message))
	}
	return nil
}

// Before returns a handler that passes requests for targets on, serves the discovery documents of all groups, and
// leaves other requests to next. It has to run after authorization.
func (a *Aggregation) Before(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := a.handlerFor(r); h != nil {
			h.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// handlerFor returns the handler for r; nil leaves r to the next handler.
func (a *Aggregation) handlerFor(r *http.Request) http.Handler {
	t := a.table.Load()
	below, ok := strings.CutPrefix(r.URL.Path, "/apis")
	if !ok {
		if t != nil && strings.HasPrefix(r.URL.Path, "/openapi/") && a.fromAggregator(r) {
			return refusal{errLoop}
		}
		return nil
	}
	if below = strings.TrimPrefix(below, "/"); below == "" {
		switch {
		case r.Method != http.MethodGet:
			return nil
		case t != nil && a.fromAggregator(r):
			return refusal{errLoop}
		}
		return a.root
	}
	if t == nil {
		return nil
	}
	group, below, _ := strings.Cut(below, "/")
	version, _, _ := strings.Cut(below, "/")
	if shown := t.groups[group]; version == "" && shown != nil && r.Method == http.MethodGet {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r, shown) })
	}
	on, ok := t.routes[schema.GroupVersion{Group: group, Version: version}]
	switch {
	case !ok:
		return nil
	case a.fromAggregator(r):
		return refusal{errLoop}
	}
	if err := on.usable(); err != nil {
		return refusal{err}
	}
	return on.target
}

// errLoop: the Service of an APIService leads back to the API servers.
var errLoop = &apierrors.StatusError{ErrStatus: metav1.Status{
	Status: metav1.StatusFailure, Code: http.StatusLoopDetected, Reason: metav1.StatusReasonServiceUnavailable,
	Message: "an APIService names a Service whose endpoints are the API servers themselves: name the Service of the server that serves the group",
}}

// fromAggregator reports whether an aggregator of this cluster sent the request: only aggregators have a certificate of
// the front proxy.
func (a *Aggregation) fromAggregator(r *http.Request) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	options, ok := a.cfg.Verify()
	if !ok {
		return false
	}
	_, err := r.TLS.PeerCertificates[0].Verify(options)
	return err == nil
}

// refusal is a handler that answers with an error.
type refusal struct{ error }

func (e refusal) ServeHTTP(w http.ResponseWriter, r *http.Request) { refuse(w, r, e.error) }

func answer(w http.ResponseWriter, r *http.Request, o runtime.Object) {
	responsewriters.WriteObjectNegotiated(aggregatorscheme.Codecs, negotiation.DefaultEndpointRestrictions, schema.GroupVersion{}, w, r, http.StatusOK, o, false)
}

// rootHandler serves /apis: the aggregated document for clients that accept it, otherwise the groups in upstream's
// order.
func (a *Aggregation) rootHandler() http.Handler {
	plain := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served, err := a.cfg.Groups().Groups(r.Context(), r)
		if err != nil {
			refuse(w, r, apierrors.NewInternalError(err))
			return
		}
		answer(w, r, &metav1.APIGroupList{Groups: order(served, a.all())})
	})
	return aggregated.WrapAggregatedDiscoveryToHandler(plain, a.cfg.Discovery, nil)
}

// order merges the groups of this server and of targets: the group of APIServices first, then by the priorities of
// APIServices. A group of this server whose APIService is not written yet comes last.
func order(served []metav1.APIGroup, services []*apiregistrationv1.APIService) []metav1.APIGroup {
	first := func(g metav1.APIGroup) bool { return g.Name == apiregistrationv1.GroupName }
	var out []metav1.APIGroup
	if i := slices.IndexFunc(served, first); i >= 0 {
		out = append(out, served[i])
	}
	for _, versions := range helper.SortedByGroupAndVersion(slices.Clone(services)) {
		if versions[0].Spec.Group != "" {
			out = append(out, *groupOf(versions))
		}
	}
	for _, g := range served {
		if !slices.ContainsFunc(out, func(have metav1.APIGroup) bool { return have.Name == g.Name }) {
			out = append(out, g)
		}
	}
	for i := range out {
		out[i].ServerAddressByClientCIDRs = nil
	}
	return out
}

// groupsOf returns the discovery documents of groups with a version of a target. A document lists all versions of its
// group.
func groupsOf(all []*apiregistrationv1.APIService, targets map[string]*apiregistrationv1.APIService) map[string]*metav1.APIGroup {
	shared := map[string]bool{}
	for _, s := range targets {
		shared[s.Spec.Group] = true
	}
	out := map[string]*metav1.APIGroup{}
	for _, versions := range helper.SortedByGroupAndVersion(slices.Clone(all)) {
		if shared[versions[0].Spec.Group] {
			out[versions[0].Spec.Group] = groupOf(versions)
		}
	}
	return out
}

// groupOf returns the plain discovery document of a group; versions are sorted.
func groupOf(versions []*apiregistrationv1.APIService) *metav1.APIGroup {
	g := &metav1.APIGroup{Name: versions[0].Spec.Group}
	for _, s := range versions {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: g.Name + "/" + s.Spec.Version, Version: s.Spec.Version})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

// Documented returns the group versions whose OpenAPI documents are on other servers.
func (a *Aggregation) Documented() []openapi.Aggregated {
	t := a.table.Load()
	if t == nil {
		return nil
	}
	var out []openapi.Aggregated
	for gv, r := range t.routes {
		if r.usable() == nil {
			out = append(out, openapi.Aggregated{Group: gv.Group, Version: gv.Version, Source: r.target})
		}
	}
	slices.SortFunc(out, func(a, b openapi.Aggregated) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version))
	})
	return out
}
