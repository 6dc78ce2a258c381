package control

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// sameKind is a kind that requests of TestFastReadsAnswerAsApiserverDoes are for.
type sameKind struct {
	group, version, resource, kind string
	cluster                        bool // has no namespaces
}

var sameKinds = []sameKind{
	{"", "v1", "secrets", "Secret", false},
	{"", "v1", "configmaps", "ConfigMap", false},
	{"", "v1", "pods", "Pod", false},
	{"", "v1", "serviceaccounts", "ServiceAccount", false},
	{"", "v1", "services", "Service", false},
	{"", "v1", "endpoints", "Endpoints", false},
	{"", "v1", "namespaces", "Namespace", true},
	{"", "v1", "nodes", "Node", true},
	{"", "v1", "persistentvolumes", "PersistentVolume", true},
	{"apps", "v1", "deployments", "Deployment", false},
	{"apps", "v1", "statefulsets", "StatefulSet", false},
	{"batch", "v1", "jobs", "Job", false},
	{"autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler", false},
	{"autoscaling", "v2", "horizontalpodautoscalers", "", false},
	{"coordination.k8s.io", "v1", "leases", "Lease", false},
	{"rbac.authorization.k8s.io", "v1", "roles", "Role", false},
	{"rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", false},
	{"rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", true},
	{"rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", true},
	{"apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", true},
	{"example.com", "v1", "widgets", "Widget", false},
	{"example.com", "v2", "widgets", "", false},
	{"example.com", "v1", "gadgets", "Gadget", true},
	{"", "v1", "nothings", "", false},
}

func kindNamed(kind string) sameKind {
	return sameKinds[slices.IndexFunc(sameKinds, func(k sameKind) bool { return k.kind == kind })]
}

// sameWorld is what there is to be read.
const sameWorld = `{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {color: red}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: b}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: a}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: b}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {color: blue}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}}
---
{apiVersion: v1, kind: PersistentVolume, metadata: {name: x}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /x}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: a, labels: {color: red}}, stringData: {key: one}}
---
{apiVersion: v1, kind: Secret, metadata: {name: u, namespace: a, labels: {color: blue}}, stringData: {key: "<two>"}}
---
{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: b}, stringData: {key: three}, type: example.com/other}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: a, labels: {color: red, shape: round}}, data: {key: "<&>"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: u, namespace: a}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: b}}
---
{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: a, labels: {color: red}}, spec: {nodeName: n1, containers: [{name: c, image: i, envFrom: [{secretRef: {name: x}}, {configMapRef: {name: x}}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: u, namespace: a}, spec: {nodeName: n2, containers: [{name: c, image: i, envFrom: [{secretRef: {name: u}}]}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: b}, spec: {containers: [{name: c, image: i}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: x, namespace: a}, spec: {ports: [{port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: a, labels: {color: blue}}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: x, namespace: b}, spec: {serviceName: x, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}, volumeClaimTemplates: [{metadata: {name: v}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: x, namespace: a}, spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}
---
{apiVersion: autoscaling/v1, kind: HorizontalPodAutoscaler, metadata: {name: x, namespace: a}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: x}, maxReplicas: 3}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: x, namespace: b}, spec: {holderIdentity: me}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: x, namespace: b}, rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.example.com}, spec: {group: example.com, scope: Namespaced, names: {plural: widgets, singular: widget, kind: Widget}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, default: 3}}}}}}, selectableFields: [{jsonPath: .spec.size}]}, {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}
---
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.example.com}, spec: {group: example.com, scope: Cluster, names: {plural: gadgets, singular: gadget, kind: Gadget}, versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}
---
{apiVersion: example.com/v1, kind: Widget, metadata: {name: x, namespace: a, labels: {color: red}}, spec: {size: 5}}
---
{apiVersion: example.com/v1, kind: Widget, metadata: {name: u, namespace: a}, spec: {}}
---
{apiVersion: example.com/v1, kind: Widget, metadata: {name: x, namespace: b, labels: {color: blue}}}
---
{apiVersion: example.com/v1, kind: Gadget, metadata: {name: x, labels: {color: blue}}, text: "<>"}`

// people have the rights that chooseRights gives them, and few others.
var people = []string{"ann", "bob", "cleo", "dan", "eve", "finn", "gus", "hal", "ida", "jo"}

// chooseUsers returns names and their groups.
func (w *twice) chooseUsers() map[string]string {
	users := map[string]string{"root": "system:masters", "system:node:n1": "system:nodes", "system:node:n2": "system:nodes", "system:node:none": "system:nodes",
		"system:kube-scheduler": "", "system:serviceaccount:a:default": "system:serviceaccounts,system:serviceaccounts:a"}
	for _, name := range people {
		users[name] = ""
	}
	return users
}

// chooseRights returns roles and their bindings.
func (w *twice) chooseRights() (docs []string) {
	for i := range 6 * len(people) {
		user := people[i%len(people)]
		kind, namespace := "Role", pick(w.choice, "a", "b")
		if w.choice.IntN(4) == 0 {
			kind = "ClusterRole"
		}
		at := ", namespace: " + namespace
		name := fmt.Sprintf("%s-%d", user, i)
		inRole, inBinding, binding := at, at, "RoleBinding"
		if kind == "ClusterRole" {
			if inRole = ""; w.choice.IntN(2) == 0 {
				inBinding, binding = "", "ClusterRoleBinding"
			}
		}
		k := sameKinds[w.choice.IntN(len(sameKinds))]
		group, resource := k.group, k.resource
		if w.choice.IntN(2) == 0 {
			group, resource = pick(w.choice, "*", k.group), pick(w.choice, "*", k.resource)
		}
		names := ""
		if w.choice.IntN(3) == 0 {
			names = ", resourceNames: [" + pick(w.choice, "x", "u", "x, u", "a", "n1") + "]"
		}
		verbs := pick(w.choice, `"*"`, "get", "list", "watch", "get, list, watch", "list, watch", "get, watch")
		docs = append(docs, fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: %s, metadata: {name: %s%s}, rules: [{apiGroups: [%q], resources: [%q], verbs: [%s]%s}]}`,
			kind, name, inRole, group, resource, verbs, names),
			fmt.Sprintf(`{apiVersion: rbac.authorization.k8s.io/v1, kind: %s, metadata: {name: %s%s}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %s}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %s}]}`,
				binding, name, inBinding, kind, name, user))
	}
	return docs
}

// value returns a usual one; of a wild request, or seldom, an odd one.
func (w *twice) value(usual, odd []string) string {
	if w.wild && w.one(2) || w.one(50) {
		return pick(w.choice, odd...)
	}
	return pick(w.choice, usual...)
}

func pick[E any](r *rand.Rand, from ...E) E { return from[r.IntN(len(from))] }

// one reports whether it is the turn of what happens once in n times.
func (w *twice) one(n int) bool { return w.choice.IntN(n) == 0 }

// choose makes a request.
func (w *twice) choose() *sameRequest {
	w.wild = w.one(3)
	q := &sameRequest{kind: sameKinds[w.choice.IntN(len(sameKinds))], method: http.MethodGet, header: http.Header{}, address: pick(w.choice, "192.0.2.9:999", "127.0.0.1:999", "[::1]:999", "10.0.0.7:1")}
	if w.one(3) {
		q.kind = sameKinds[w.choice.IntN(4)]
	}
	q.target = w.choosePath(q.kind)
	switch named := strings.Contains(q.target, "/"+q.kind.resource+"/") && !strings.Contains(q.target, "/watch/"); {
	case named && !w.wild && w.one(3):
		q.target += "?resourceVersion=" + w.version()
	case !named || w.wild:
		q.target += w.chooseQuery()
	}
	if w.one(30) { // long answers
		q.target = "/api/v1/namespaces/b/configmaps" + pick(w.choice, "", "?labelSelector=color%3Dred", "/edge-1", "/edge-2", "/edge-3")
	}
	if w.one(12) {
		q.method = pick(w.choice, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW")
	}
	if q.method != http.MethodGet && q.method != http.MethodHead {
		q.target = w.choosePath(q.kind) + "?dryRun=All"
		if q.method != http.MethodDelete { // whose options are not in the query once there is a body
			q.body = pick(w.choice, "", "{}", `{"metadata":{"name":"z","labels":{"a":"b"}}}`)
		}
		q.header.Set("Content-Type", pick(w.choice, "application/json", "application/merge-patch+json", "text/plain"))
	}
	w.chooseHeaders(q.header)
	return q
}

func (w *twice) choosePath(k sameKind) string {
	var b strings.Builder
	b.WriteString("/api")
	if k.group != "" {
		b.WriteString("s/" + k.group)
	}
	b.WriteString("/" + k.version)
	if w.one(10) {
		b.WriteString("/watch")
	}
	if !k.cluster && !w.one(4) || k.cluster && w.one(10) {
		b.WriteString("/namespaces/" + w.value([]string{"a", "a", "a", "b"}, []string{"none", "kube-system", "%61", "", "..", "a%2Fb"}))
	}
	if w.one(100) {
		b.WriteString("/")
	}
	b.WriteString("/" + k.resource)
	if w.choice.IntN(5) < 2 {
		b.WriteString("/" + w.value([]string{"x", "x", "x", "u", "a", "n1", "none"}, []string{"b", "%78", "x%2F", "..", ".", "X", "x%00", "", "big-1", "edge-1", "edge-2", "edge-3", "cluster-admin", "a,b", "x%3Fwatch=1"}))
		if w.one(12) {
			b.WriteString("/" + pick(w.choice, "status", "scale", "finalize", "none", "", "token", "x"))
		}
	}
	if w.one(100) {
		b.WriteString("/")
	}
	if w.one(200) {
		return pick(w.choice, "/", "/apis", "/api", "/version", "/healthz", "/apis/apps/v1", "//api/v1/pods", "/api/v1/../v1/pods", "/api/v1/namespaces/a/../b/secrets", "/api//v1/secrets")
	}
	return b.String()
}

func (w *twice) version() string {
	now := w.cfg.Store.View().Revision()
	return w.value([]string{"", "0", "0", fmt.Sprint(now), fmt.Sprint(now - int64(w.choice.IntN(20)))}, []string{"1", fmt.Sprint(now + 1), "1000000000", "x", "-1", "18446744073709551615"})
}

func (w *twice) chooseQuery() string {
	type values = []string
	of := map[string]func() string{
		"watch":                func() string { return w.value(values{"1", "true"}, values{"TRUE", "t", "0", "false", "", "perhaps"}) },
		"resourceVersion":      w.version,
		"resourceVersionMatch": func() string { return w.value(values{"NotOlderThan"}, values{"Exact", "", "x"}) },
		"limit":                func() string { return w.value(values{"1", "2", "500"}, values{"0", "-1", "x", "9223372036854775807"}) },
		"continue":             func() string { return w.value(values{w.token()}, values{"", "x"}) },
		"labelSelector": func() string {
			return w.value(values{"color=red", "color=blue", "color", "!color", "color in (red,blue)", "color!=red"}, values{"shape=round,color=red", "", "==", "color=red,,", "a/b/c=d", "color>1"})
		},
		"fieldSelector": func() string {
			return w.value(values{"metadata.name=x", "metadata.name=x", "metadata.name==u", "metadata.namespace=a", "spec.nodeName=n1"},
				values{"metadata.name!=x", "metadata.name=", "metadata.name=a/b", "metadata.name=x,metadata.namespace=b", "metadata.name=x,metadata.name=u", "spec.nodeName=n2", "spec.nodeName=n1,metadata.name=x",
					"status.phase=Pending", "type=Opaque", "spec.size=5", "", "nonsense", "no.such=field", "metadata.name=n1", "metadata.name=a"})
		},
		"sendInitialEvents":   func() string { return w.value(values{"true", "true", "false"}, values{"1", "x"}) },
		"allowWatchBookmarks": func() string { return w.value(values{"true", "1"}, values{"false", "x"}) },
		"timeoutSeconds": func() string {
			return w.value(values{"60", "1000"}, values{"1", "0", "-1", "x", "99999999999", "4294967296"})
		},
		"timeout":              func() string { return pick(w.choice, "1s", "x") },
		"pretty":               func() string { return pick(w.choice, "true", "false", "x") },
		"includeUninitialized": func() string { return "true" },
		"nobody-knows":         func() string { return "1" },
		"shardSelector":        func() string { return "x" },
		"export":               func() string { return pick(w.choice, "1", "false") },
	}
	names := []string{"watch", "resourceVersion", "resourceVersionMatch", "limit", "continue", "labelSelector", "fieldSelector", "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds"}
	var parts []string
	add := func(name, value string) { parts = append(parts, url.QueryEscape(name)+"="+url.QueryEscape(value)) }
	form := w.choice.IntN(8)
	if !w.wild {
		form = w.choice.IntN(6)
	}
	switch form {
	case 0:
		return ""
	case 1, 2, 3: // as informers watch
		add("watch", pick(w.choice, "true", "1"))
		if w.one(2) {
			add("allowWatchBookmarks", "true")
		}
		if w.one(3) {
			add("sendInitialEvents", "true")
			add("resourceVersionMatch", "NotOlderThan")
			add("allowWatchBookmarks", "true")
		} else {
			add("resourceVersion", w.version())
		}
		for _, name := range []string{"labelSelector", "fieldSelector", "timeoutSeconds"} {
			if w.one(3) {
				add(name, of[name]())
			}
		}
	case 4, 5: // as informers list
		for _, name := range []string{"limit", "resourceVersion", "labelSelector", "resourceVersionMatch", "fieldSelector", "continue"} {
			if w.one(4) {
				add(name, of[name]())
			}
		}
	default:
		for range w.choice.IntN(5) {
			name := pick(w.choice, names...)
			add(name, of[name]())
		}
		if w.one(3) {
			name := pick(w.choice, "timeout", "pretty", "includeUninitialized", "nobody-knows", "shardSelector", "export")
			add(name, of[name]())
		}
		if w.one(20) {
			parts = append(parts, pick(w.choice, "watch", "%zz", "a;b", "watch=1;x=2", "=", "&&", "Watch=true", "watch%3Dtrue"))
		}
	}
	if len(parts) == 0 {
		return pick(w.choice, "", "?")
	}
	return "?" + strings.Join(parts, "&")
}

// token is where some list may go on.
func (w *twice) token() string {
	revision := w.cfg.Store.View().Revision()
	list := fmt.Sprintf(`{"v":"meta.k8s.io/v1","rv":%d,"start":"%s\u0000"}`, pick(w.choice, revision, revision-3, -1, 1), pick(w.choice, "x", "a/x", "b/x", "../x", "/a"))
	return base64.RawURLEncoding.EncodeToString([]byte(list))
}

func (w *twice) chooseHeaders(h http.Header) {
	user := pick(w.choice, w.users...)
	if w.one(2) {
		user = "root"
	}
	if user != "" {
		h.Set("Authorization", "Bearer "+user)
		if user == "root" && w.one(8) {
			h.Set("Impersonate-User", pick(w.choice, people...))
		}
	}
	const protobuf = "application/vnd.kubernetes.protobuf"
	usual := []string{"*/*", "application/json", "application/json", protobuf, protobuf, protobuf + ",application/json", "application/json, */*"}
	times := 1
	if w.wild {
		times = pick(w.choice, 0, 1, 1, 1, 1, 2)
	}
	for range times {
		h.Add("Accept", w.value(usual, []string{protobuf + ", application/json", "",
			"application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "application/json;as=Table;v=v1;g=meta.k8s.io", protobuf + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io," + protobuf,
			"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json", "application/cbor", "application/yaml", "text/html",
			"application/*", "application/json;stream=watch", protobuf + ";stream=watch", "application/json;q=0.1," + protobuf, "nonsense", ";;;", "application/json;pretty=1"}))
	}
	h.Set("User-Agent", w.value([]string{"kubectl/v1.36.3", "balsa"}, []string{"curl/8.1", "Wget/1", "Mozilla/5.0 (X11)", "curly", ""}))
	if w.one(2) {
		h.Set("Accept-Encoding", w.value([]string{"gzip", "gzip, deflate"}, []string{"deflate", "identity", "x-gzip", "gzip;q=0", "*"}))
	}
	if w.one(60) {
		h.Set("Upgrade", pick(w.choice, "websocket", "SPDY/3.1"))
	}
}
