package authz

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/balsahq/balsa/control/auth/listers"
)

// Node authorizes members of system:nodes. They may access their own Node, Lease and CSINode, the pods bound to them,
// the objects to which these pods refer, and the certificates that nodes show for Ingresses and Gateways. The rules are
// upstream's (plugin/pkg/auth/authorizer/node). Upstream keeps a graph of relations that informers feed; here each pod
// has a small extract, refreshed from the store when a request needs it.
type Node struct {
	rules      []rbacv1.PolicyRule
	identifier nodeidentifier.NodeIdentifier

	pods, volumes, claims, attachments, slices *listers.Indexer
	entrances                                  entrances

	mu       sync.Mutex
	extracts map[string]extract // by the pod's key in the store
}

// extract holds the fields of a pod that the rules need.
type extract struct {
	modRevision     int64
	node, namespace string
	name            string
	refs            map[ref]bool
}

type ref struct{ kind, name string }

const (
	refSecret    = "secret"
	refConfigMap = "configmap"
	refClaim     = "pvc"
	refAccount   = "serviceaccount"
	refResource  = "resourceclaim"
)

// NewNode returns the authorizer.
func NewNode(store *listers.Store) *Node {
	core := func(r string) *listers.Indexer { return store.Fresh(schema.GroupResource{Resource: r}) }
	return &Node{
		rules: bootstrappolicy.NodeRules(), identifier: nodeidentifier.NewDefaultNodeIdentifier(), extracts: map[string]extract{},
		pods: core("pods"), volumes: core("persistentvolumes"), claims: core("persistentvolumeclaims"),
		attachments: store.Fresh(schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"}),
		slices:      store.Fresh(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}),
		entrances:   newEntrances(store),
	}
}

// RulesFor returns an error: a node's rights cannot be listed.
func (n *Node) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, is := n.identifier.NodeIdentity(u); is {
		return nil, nil, true, errors.New("node authorizer does not support user rule resolution")
	}
	return nil, nil, false, nil
}

// Authorize decides requests of nodes, and has no opinion on other users.
func (n *Node) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, is := n.identifier.NodeIdentity(a.GetUser())
	if !is {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if node == "" {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("unknown node for user %q", a.GetUser().GetName()), nil
	}
	if a.IsResourceRequest() {
		if rule, ok := nodeRules[schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}]; ok {
			if reason := rule(n, node, a); reason != "" {
				return authorizer.DecisionNoOpinion, reason, nil
			}
			return authorizer.DecisionAllow, "", nil
		}
	}
	if rbac.RulesAllow(a, n.rules...) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// nodeRules return, for each resource, the reason for a denial; "" allows.
var nodeRules = map[schema.GroupResource]func(n *Node, node string, a authorizer.Attributes) string{
	{Resource: "secrets"}:                                    secretRule,
	{Resource: "configmaps"}:                                 readRelated(refConfigMap),
	{Resource: "persistentvolumeclaims"}:                     claimRule,
	{Resource: "persistentvolumes"}:                          getVia((*Node).usesVolume),
	{Resource: "serviceaccounts"}:                            accountRule,
	{Resource: "nodes"}:                                      ownNodeRule,
	{Resource: "pods"}:                                       podRule,
	{Group: "storage.k8s.io", Resource: "volumeattachments"}: getVia((*Node).attached),
	{Group: "resource.k8s.io", Resource: "resourceclaims"}:   getRelated(refResource),
	{Group: "resource.k8s.io", Resource: "resourceslices"}:   sliceRule,
	{Group: "coordination.k8s.io", Resource: "leases"}:       leaseRule,
	{Group: "storage.k8s.io", Resource: "csinodes"}:          csiNodeRule,
}

func unrelated(node string) string {
	return fmt.Sprintf("no relationship found between node '%s' and this object", node)
}

func (n *Node) related(node, kind string, a authorizer.Attributes) string {
	if a.GetName() == "" {
		return "No Object name found"
	}
	if !n.podsOf(node, a.GetNamespace(), func(e extract) bool { return e.refs[ref{kind, a.GetName()}] }) {
		return unrelated(node)
	}
	return ""
}

func readRelated(kind string) func(*Node, string, authorizer.Attributes) string {
	return func(n *Node, node string, a authorizer.Attributes) string {
		switch {
		case !oneOf(a.GetVerb(), "get", "list", "watch"):
			return "can only read resources of this type"
		case a.GetSubresource() != "":
			return "cannot read subresource"
		case a.GetNamespace() == "":
			return "can only read namespaced object of this type"
		}
		return n.related(node, kind, a)
	}
}

func onlyGet(a authorizer.Attributes) string {
	switch {
	case a.GetVerb() != "get":
		return "can only get individual resources of this type"
	case a.GetSubresource() != "":
		return "cannot get subresource"
	}
	return ""
}

func getRelated(kind string) func(*Node, string, authorizer.Attributes) string {
	return func(n *Node, node string, a authorizer.Attributes) string {
		if reason := onlyGet(a); reason != "" {
			return reason
		}
		return n.related(node, kind, a)
	}
}

func getVia(has func(n *Node, node, name string) bool) func(*Node, string, authorizer.Attributes) string {
	return func(n *Node, node string, a authorizer.Attributes) string {
		if reason := onlyGet(a); reason != "" {
			return reason
		}
		if a.GetName() == "" || !has(n, node, a.GetName()) {
			return unrelated(node)
		}
		return ""
	}
}

func claimRule(n *Node, node string, a authorizer.Attributes) string {
	if a.GetSubresource() != "status" {
		return getRelated(refClaim)(n, node, a)
	}
	if !oneOf(a.GetVerb(), "update", "patch") {
		return "can only get/update/patch this type"
	}
	return n.related(node, refClaim, a)
}

func accountRule(n *Node, node string, a authorizer.Attributes) string {
	if a.GetVerb() == "get" && a.GetSubresource() == "" {
		return readRelated(refAccount)(n, node, a)
	}
	switch {
	case a.GetVerb() != "create" || a.GetName() == "":
		return "can only create tokens for individual service accounts"
	case a.GetSubresource() != "token":
		return "can only create token subresource of serviceaccount"
	}
	return n.related(node, refAccount, a)
}

func ownNodeRule(_ *Node, node string, a authorizer.Attributes) string {
	verb := a.GetVerb()
	switch a.GetSubresource() {
	case "":
		if oneOf(verb, "create", "update", "patch") {
			return "" // the admission plugin NodeRestriction decides which Node
		}
		if oneOf(verb, "get", "list", "watch") {
			switch a.GetName() {
			case node:
				return ""
			case "":
				return fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node)
			}
			return fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.GetName())
		}
	case "status":
		if oneOf(verb, "update", "patch") {
			return ""
		}
	}
	return "nodes may not do this to nodes"
}

func podRule(n *Node, node string, a authorizer.Attributes) string {
	verb := a.GetVerb()
	switch a.GetSubresource() {
	case "":
		if oneOf(verb, "create", "delete") {
			return "" // the admission plugin NodeRestriction decides which pods
		}
		if oneOf(verb, "list", "watch") && selects(a, "spec.nodeName", node) {
			return ""
		}
		if !oneOf(verb, "get", "list", "watch") {
			break
		}
		if a.GetName() == "" {
			return "can only list/watch pods with spec.nodeName field selector"
		}
		if !n.podsOf(node, a.GetNamespace(), func(e extract) bool { return e.name == a.GetName() }) {
			return unrelated(node)
		}
		return ""
	case "status":
		if oneOf(verb, "update", "patch") {
			return ""
		}
	case "eviction":
		if verb == "create" {
			return ""
		}
	}
	return "nodes may not do this to pods"
}

func leaseRule(_ *Node, node string, a authorizer.Attributes) string {
	switch {
	case !oneOf(a.GetVerb(), "get", "create", "update", "patch", "delete"):
		return "can only get, create, update, patch, or delete a node lease"
	case a.GetNamespace() != corev1.NamespaceNodeLease:
		return fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	case a.GetVerb() != "create" && a.GetName() != node:
		return "can only access node lease with the same name as the requesting node"
	}
	return ""
}

func csiNodeRule(_ *Node, node string, a authorizer.Attributes) string {
	switch {
	case !oneOf(a.GetVerb(), "get", "create", "update", "patch", "delete"):
		return "can only get, create, update, patch, or delete a CSINode"
	case a.GetSubresource() != "":
		return "cannot authorize CSINode subresources"
	case a.GetVerb() != "create" && a.GetName() != node:
		return "can only access CSINode with the same name as the requesting node"
	}
	return ""
}

func sliceRule(n *Node, node string, a authorizer.Attributes) string {
	switch {
	case a.GetSubresource() != "":
		return "cannot authorize ResourceSlice subresources"
	case a.GetVerb() == "create":
		return "" // the admission plugin NodeRestriction compares the slice's node
	case oneOf(a.GetVerb(), "get", "update", "patch", "delete"):
		if n.hasSlice(node, a.GetName()) {
			return ""
		}
		return unrelated(node)
	case !oneOf(a.GetVerb(), "list", "watch", "deletecollection"):
		return "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
	case selects(a, resourcev1.ResourceSliceSelectorNodeName, node):
		return ""
	}
	return "can only list/watch/deletecollection resourceslices with nodeName field selector"
}

// hasSlice reports whether the ResourceSlice is of the node.
func (n *Node) hasSlice(node, name string) bool {
	obj, ok, err := n.slices.GetByKey(name)
	s, is := obj.(*resourcev1.ResourceSlice)
	return ok && err == nil && is && s.Spec.NodeName != nil && *s.Spec.NodeName == node
}

func oneOf(s string, in ...string) bool {
	for _, x := range in {
		if s == x {
			return true
		}
	}
	return false
}

func selects(a authorizer.Attributes, field, value string) bool {
	var reqs fields.Requirements
	reqs, _ = a.GetFieldSelector()
	for _, r := range reqs {
		if r.Field == field && r.Operator == selection.Equals && r.Value == value {
			return true
		}
	}
	return false
}

// podsOf reports whether a pod on node in namespace ("" = any) satisfies the condition. A pod is decoded once for each
// version; only its extract is kept.
func (n *Node) podsOf(node, namespace string, is func(extract) bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	found, seen := false, 0
	n.pods.EachKey(namespace, func(key string, mod int64) bool {
		seen++
		e, ok := n.extracts[key]
		if !ok || e.modRevision != mod {
			e = n.extract(key, mod)
			n.extracts[key] = e
		}
		found = e.node == node && is(e)
		return !found
	})
	if !found && namespace == "" && len(n.extracts) > 2*seen+16 {
		clear(n.extracts) // most of them belong to deleted pods
	}
	return found
}

func (n *Node) extract(key string, mod int64) extract {
	e := extract{modRevision: mod}
	parts := strings.Split(key, "/")
	if len(parts) < 2 {
		return e
	}
	obj, ok, err := n.pods.GetByKey(parts[len(parts)-2] + "/" + parts[len(parts)-1])
	pod, is := obj.(*corev1.Pod)
	if !ok || err != nil || !is {
		return e
	}
	e.node, e.namespace, e.name, e.refs = pod.Spec.NodeName, pod.Namespace, pod.Name, podRefs(pod)
	return e
}

// usesVolume reports whether a claim of a pod on the node is bound to the PersistentVolume.
func (n *Node) usesVolume(node, name string) bool {
	obj, ok, err := n.volumes.GetByKey(name)
	pv, is := obj.(*corev1.PersistentVolume)
	if !ok || err != nil || !is || pv.Spec.ClaimRef == nil {
		return false
	}
	c := pv.Spec.ClaimRef
	return n.podsOf(node, c.Namespace, func(e extract) bool { return e.refs[ref{refClaim, c.Name}] })
}

// attached reports whether the VolumeAttachment is for the node.
func (n *Node) attached(node, name string) bool {
	obj, ok, err := n.attachments.GetByKey(name)
	va, is := obj.(*storagev1.VolumeAttachment)
	return ok && err == nil && is && va.Spec.NodeName == node
}
