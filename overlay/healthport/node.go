package healthport

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
)

// autoscalerTaint marks nodes that will be removed soon (k8s.io/autoscaler).
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// eligible reports whether load balancers may send to the node.
func eligible(n *v1.Node) bool {
	return n.DeletionTimestamp == nil && !slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == autoscalerTaint })
}

// nodeHealth is the body of kube-proxy's /healthz and /livez.
type nodeHealth struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
}

// nodeCheck is the handler for the health check of the node itself.
type nodeCheck struct {
	healthy func() bool
	// leaves is true when the node will be removed soon.
	leaves atomic.Bool
}

func (h *nodeCheck) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { h.writeHealth(w, new(!h.leaves.Load())) })
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { h.writeHealth(w, nil) })
	return mux
}

// status returns the handler of kube-proxy's /proxyMode, which tells programs of the node how Services are routed.
func status() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write([]byte("nftables"))
	})
	return mux
}

func (h *nodeCheck) writeHealth(w http.ResponseWriter, stays *bool) {
	body := nodeHealth{CurrentTime: time.Now(), NodeEligible: stays}
	healthy := h.healthy()
	if healthy {
		body.LastUpdated = body.CurrentTime
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !healthy || stays != nil && !*stays {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}
