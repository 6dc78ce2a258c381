package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const boats = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.sea.example.com}
spec:
  group: sea.example.com
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        description: Boat is something that floats.
        type: object
        properties: {spec: {type: object, properties: {sails: {type: integer}}}}
`

// TestAnotherAPIServerIsAggregated: a second cluster, which trusts the first one's front proxy, serves a group of the
// first one's API through a Service. Neither cluster has an agent: the server reaches the Service by itself.
func TestAnotherAPIServerIsAggregated(t *testing.T) {
	s := newSeveral(t, 1, 0, 1)
	s.form()
	front := s.servers[0]
	other := newHostOn(t, s.spare[0], "--disable-agent", "--tls-san=sea.kube-system.svc", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-client-ca-file="+filepath.Join(front.DataDir, "server", "tls", "front-proxy-ca.crt"))
	s.must(other.Start("server"))
	s.ready(other)
	other.apply(boats)
	other.eventually("boats are served", other.wants("boats", "api-resources", "--api-group=sea.example.com"))
	ca, err := os.ReadFile(filepath.Join(other.DataDir, "server", "tls", "ca.crt"))
	s.must(err)
	front.apply(fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: sea, namespace: kube-system}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sea, namespace: kube-system, labels: {kubernetes.io/service-name: sea}}
addressType: IPv4
endpoints: [{addresses: [%s]}]
ports: [{name: https, port: 6443}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.sea.example.com}
spec:
  group: sea.example.com
  version: v1
  groupPriorityMinimum: 2000
  versionPriority: 10
  caBundle: %s
  service: {name: sea, namespace: kube-system}
`, other.Addr, base64.StdEncoding.EncodeToString(ca)))
	available := func(want string) func() error {
		return front.wants(want, "get", "apiservice", "v1.sea.example.com", "--no-headers")
	}
	front.eventually("the other server is available", available("kube-system/sea   True"))
	if all := front.kubectl("get", "apiservices"); !strings.Contains(all, "v1.apps") || !strings.Contains(all, "Local") {
		t.Errorf("APIServices:\n%s", all)
	}
	front.eventually("boats are discovered", front.wants("boats", "api-resources", "--api-group=sea.example.com"))
	watch := front.inBackground("get", "boats", "--watch", "--no-headers")
	front.apply(`{apiVersion: sea.example.com/v1, kind: Boat, metadata: {name: kon-tiki}, spec: {sails: 1}}`)
	front.eventually("the watch tells", watch.says("kon-tiki"))
	watch.end()
	if seen := other.kubectl("get", "boat", "kon-tiki", "-o", "jsonpath={.spec.sails}"); seen != "1" {
		t.Errorf("the other server has %q", seen)
	}
	if text := front.kubectl("explain", "boat.spec.sails"); !strings.Contains(text, "<integer>") {
		t.Errorf("explain: %s", text)
	}
	if said := front.refused("apply", "--dry-run=server", "-f", boat(t, `{apiVersion: sea.example.com/v1, kind: Boat, metadata: {name: b}, spec: {sails: many}}`)); !strings.Contains(said, "sails") {
		t.Errorf("a bad boat: %s", said)
	}
	s.must(other.Process().Kill9())
	front.eventually("the other server is gone", available("False (FailedDiscoveryCheck)"))
	if said := front.refused("get", "boats"); !strings.Contains(said, "FailedDiscoveryCheck") && !strings.Contains(said, "unable to handle the request") {
		t.Errorf("boats of nobody: %s", said)
	}
	front.kubectl("get", "namespaces")
	s.must(other.Start("server"))
	front.eventually("the other server is back", available("True"))
	front.eventually("boats are there again", front.wants("kon-tiki", "get", "boats"))
	front.kubectl("delete", "apiservice", "v1.sea.example.com")
	front.eventually("nobody serves boats", func() error {
		if out, err := front.Kubectl(t.Context(), "get", "--raw", "/apis/sea.example.com/v1"); err == nil {
			return fmt.Errorf("somebody does: %s", out)
		}
		return nil
	})
}

// boat returns the path of a manifest.
func boat(t *testing.T, manifest string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "boat.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
