package corpus_test

import (
	"crypto/tls"
	"net/http"
	"testing"

	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/authn"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/control/corpus"
)

// startServer starts a Balsa server that knows the user of the recording.
func startServer(t *testing.T) corpus.Server {
	t.Helper()
	tokens := controltest.File(t, "tokens.csv", corpus.Tokens)
	s := controltest.Start(t, func(c *control.Config) { c.Authentication = authn.Settings{TokenFile: tokens} })
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.PKI.Pool()}, ForceAttemptHTTP2: true}
	client := &http.Client{Transport: transport}
	t.Cleanup(client.CloseIdleConnections)
	return corpus.Server{URL: "https://" + s.Address, Client: client}
}

// allowedSurfaceDifferences are the differences of the surface that are meant.
var allowedSurfaceDifferences = []corpus.Allowed{
	{
		Line:   `/apis/apiextensions.k8s.io/v1: .* > storageVersionHash: .*`,
		Reason: "upstream stores CustomResourceDefinitions as v1beta1 still; here they are v1 in the store, and the hash says so",
	},
	{
		Line:   `.*(metrics\.k8s\.io|metrics\.v1beta1).*: extra.*`,
		Reason: "servers here answer metrics.k8s.io themselves; upstream's cluster has it when metrics-server is installed",
	},
	{
		Line:   `/openapi/v2: definitions > io\.k8s\.apimachinery\.pkg\.apis\.meta\.v1\.Duration: extra.*`,
		Reason: "the window of metrics.k8s.io is one, and no object of the groups that upstream serves has any",
	},
}

func TestSurfaceIsUpstreams(t *testing.T) {
	var want []corpus.Document
	if err := corpus.Load("testdata/surface.zst", &want); err != nil {
		t.Fatal(err)
	}
	if len(want) < 90 {
		t.Fatalf("the recording has %d documents", len(want))
	}
	got, err := corpus.Surface(t.Context(), startServer(t))
	if err != nil {
		t.Fatal(err)
	}
	left, idle := corpus.FilterAllowed(corpus.Compare(want, got), allowedSurfaceDifferences)
	for _, d := range left {
		t.Error(d)
	}
	for _, a := range idle {
		t.Errorf("allowed and not found any more: %s (%s)", a.Line, a.Reason)
	}
}
