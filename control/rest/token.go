package rest

import (
	"context"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Tokens serves serviceaccounts/token.
type Tokens struct {
	accounts, pods, secrets, nodes rest.Getter
	issue                          serviceaccount.TokenGenerator
	audiences                      authenticator.Audiences
}

var (
	_ rest.NamedCreater                   = (*Tokens)(nil)
	_ rest.GroupVersionKindProvider       = (*Tokens)(nil)
	_ rest.SubresourceObjectMetaPreserver = (*Tokens)(nil)
)

var tokenRequest = authenticationv1.SchemeGroupVersion.WithKind("TokenRequest")

// A pod's projected token is requested with warnAfter seconds and lives for a year. Clients that read the file only
// once keep working, and their use of the old token is counted as stale (upstream:
// --service-account-extend-token-expiration).
const (
	warnAfter        = serviceaccount.WarnOnlyBoundTokenExpirationSeconds
	extendedLifetime = int64(serviceaccount.ExpirationExtensionSeconds)
)

func newTokens(cfg Config, accounts rest.Getter) *Tokens {
	return &Tokens{accounts: accounts, pods: cfg.Table.Store("", "pods"), secrets: cfg.Table.Store("", "secrets"),
		nodes: cfg.Table.Store("", "nodes"), issue: cfg.Issue, audiences: cfg.Audiences}
}

// New implements rest.Storage.
func (t *Tokens) New() runtime.Object { return &authentication.TokenRequest{} }

// Destroy implements rest.Storage.
func (t *Tokens) Destroy() {}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (t *Tokens) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind { return tokenRequest }

// PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate keeps the UID, which is a precondition on the account.
func (t *Tokens) PreserveRequestObjectMetaSystemFieldsOnSubresourceCreate() bool { return true }

// Create issues a token.
func (t *Tokens) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	req, ok := obj.(*authentication.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", obj))
	}
	account, err := t.account(ctx, name, req)
	if err != nil {
		return nil, err
	}
	now := time.Now() // before the token is made, so that the token does not end before the time in the answer
	t.complete(req, account, now)
	if errs := validation.ValidateTokenRequest(req); len(errs) != 0 {
		return nil, apierrors.NewInvalid(tokenRequest.GroupKind(), "", errs)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	b, err := t.bound(ctx, account, req.Spec.BoundObjectRef)
	if err != nil {
		return nil, err
	}
	lifetime, warn := req.Spec.ExpirationSeconds, int64(0)
	if b.pod != nil && lifetime == warnAfter && t.forThisAPI(req.Spec.Audiences) {
		lifetime, warn = extendedLifetime, lifetime
	}
	public, private, err := serviceaccount.Claims(*account, b.pod, b.secret, b.node, lifetime, warn, req.Spec.Audiences)
	if err != nil {
		return nil, err
	}
	token, err := t.issue.GenerateToken(ctx, public, private)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	out := req.DeepCopy()
	out.Status = authentication.TokenRequestStatus{Token: token,
		ExpirationTimestamp: metav1.Time{Time: now.Add(time.Duration(req.Spec.ExpirationSeconds) * time.Second)}}
	return out, nil
}

// account returns the request's ServiceAccount, and checks that URL, body and account agree.
func (t *Tokens) account(ctx context.Context, name string, req *authentication.TokenRequest) (*api.ServiceAccount, error) {
	namespace, ok := request.NamespaceFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("namespace is required")
	}
	differs := func(child, value, what string) error {
		return apierrors.NewInvalid(tokenRequest.GroupKind(), name, field.ErrorList{field.Invalid(field.NewPath("metadata").Child(child), value,
			"must match the service account "+what+" if specified")})
	}
	if req.Name != "" && req.Name != name {
		return nil, differs("name", req.Name, "name")
	}
	if req.Namespace != "" && req.Namespace != namespace {
		return nil, differs("namespace", req.Namespace, "namespace")
	}
	obj, err := t.accounts.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	account, ok := obj.(*api.ServiceAccount)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("%T is not a ServiceAccount", obj))
	}
	if req.UID != "" && req.UID != account.UID {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: tokenRequest.Group, Resource: tokenRequest.Kind}, name,
			fmt.Errorf("the UID in the token request (%s) does not match the UID of the service account (%s)", req.UID, account.UID))
	}
	return account, nil
}

func (t *Tokens) complete(req *authentication.TokenRequest, account *api.ServiceAccount, now time.Time) {
	if len(req.Spec.Audiences) == 0 {
		req.Spec.Audiences = t.audiences
	}
	req.Name, req.Namespace, req.UID = account.Name, account.Namespace, account.UID
	req.CreationTimestamp = metav1.NewTime(now)
	req.Status = authentication.TokenRequestStatus{}
}

func (t *Tokens) forThisAPI(audiences []string) bool {
	for _, a := range audiences {
		if !slices.Contains(t.audiences, a) {
			return false
		}
	}
	return true
}

// bound is the object that a token is bound to.
type bound struct {
	pod    *api.Pod
	secret *api.Secret
	node   *api.Node
}

func (t *Tokens) bound(ctx context.Context, account *api.ServiceAccount, to *authentication.BoundObjectReference) (bound, error) {
	var b bound
	if to == nil {
		return b, nil
	}
	var uid types.UID
	var err error
	gvk := schema.FromAPIVersionAndKind(to.APIVersion, to.Kind)
	switch gvk.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		if b, err = t.boundPod(ctx, account.Name, to.Name); err == nil {
			uid = b.pod.UID
		}
	case schema.GroupKind{Kind: "Node"}:
		if b.node, err = read[*api.Node](withObjectInfo(ctx, "nodes", to.Name), t.nodes, to.Name); err == nil {
			uid = b.node.UID
		}
	case schema.GroupKind{Kind: "Secret"}:
		if b.secret, err = read[*api.Secret](withObjectInfo(ctx, "secrets", to.Name), t.secrets, to.Name); err == nil {
			uid = b.secret.UID
		}
	default:
		err = apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", gvk.String()))
	}
	if err != nil {
		return b, err
	}
	if to.UID != "" && uid != to.UID {
		return b, apierrors.NewConflict(schema.GroupResource{Group: gvk.Group, Resource: gvk.Kind}, to.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", to.UID))
	}
	return b, nil
}

// boundPod reads the pod and, for the node claims in the token, its node.
func (t *Tokens) boundPod(ctx context.Context, account, name string) (b bound, err error) {
	if b.pod, err = read[*api.Pod](withObjectInfo(ctx, "pods", name), t.pods, name); err != nil {
		return b, err
	}
	if b.pod.Spec.ServiceAccountName != account {
		return b, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running with different serviceaccount name.", account))
	}
	if node := b.pod.Spec.NodeName; node != "" {
		b.node, err = read[*api.Node](withObjectInfo(ctx, "nodes", node), t.nodes, node)
		if apierrors.IsNotFound(err) {
			b.node, err = &api.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, nil
		}
	}
	return b, err
}

// withObjectInfo makes errors name the object that is read instead of the request's account.
func withObjectInfo(ctx context.Context, resource, name string) context.Context {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return ctx
	}
	of := *info
	of.APIGroup, of.APIVersion, of.Resource, of.Subresource, of.Name = "", "v1", resource, "", name
	return request.WithRequestInfo(ctx, &of)
}

func read[T runtime.Object](ctx context.Context, from rest.Getter, name string) (T, error) {
	var none T
	obj, err := from.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return none, err
	}
	out, ok := obj.(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("unexpected %T", obj))
	}
	return out, nil
}
