package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/balsahq/balsa/control/auth/listers"
	"github.com/balsahq/balsa/control/legacy/initializers"
)

// Initializers gives new objects their list of pending initializers. It refuses writes to objects that wait, except
// from clients with the right to "initialize" the resource. Kubernetes had this plugin until v1.13, in this place of
// the order.
const initializersName = "Initializers"

type initialize struct {
	*admission.Handler
	configurations configurations
	authorizer     authorizer.Authorizer
}

// withInitializers adds the plugin to the order if the cluster uses initializers.
func (b *builder) withInitializers(order []string) []string {
	if !b.cfg.Initializers {
		return order
	}
	return slices.Insert(slices.Clone(order), slices.Index(order, mutatingwebhook.PluginName)+1, initializersName)
}

func (b *builder) registerInitializers(plugins *admission.Plugins) {
	plugins.Register(initializersName, func(io.Reader) (admission.Interface, error) {
		return &initialize{
			Handler:        admission.NewHandler(admission.Create, admission.Update),
			configurations: configurations{stored: b.cfg.Live.Fresh(initializers.Resource.GroupResource())},
			authorizer:     b.cfg.Authorizer,
		}, nil
	})
}

// Admit implements admission.MutationInterface.
func (p *initialize) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetReinvocationContext().IsReinvoke() || initializers.Exempt(a.GetResource().GroupResource()) {
		return nil
	}
	obj, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil // an object without metadata cannot wait
	}
	if a.GetOperation() == admission.Update {
		return p.update(ctx, a, obj)
	}
	return p.create(ctx, a, obj)
}

// create makes a new object wait for the initializers that configurations name, unless the object names its
// initializers itself.
func (p *initialize) create(ctx context.Context, a admission.Attributes, obj metav1.Object) error {
	if _, ok := obj.GetAnnotations()[initializers.Annotation]; ok {
		state, err := p.written(ctx, a, obj, "create with initializers denied")
		if err != nil {
			return err
		}
		if part(a) {
			return invalid(a, fmt.Errorf("a part of an object has no initializers: remove annotation %s", initializers.Annotation))
		}
		return initializers.Set(obj, state)
	}
	if _, mirror := obj.GetAnnotations()[corev1.MirrorPodAnnotationKey]; mirror && a.GetResource().GroupResource() == corev1.Resource("pods") {
		return nil // a mirror pod already runs
	}
	if part(a) || isServer(a.GetUserInfo()) {
		return nil
	}
	names, err := p.configurations.names(a.GetResource())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if len(names) == 0 {
		return nil
	}
	return initializers.Set(obj, initializers.Waiting(names))
}

// part reports whether a request creates only a part of an object (a subresource or a binding), whose annotations
// become the object's.
func part(a admission.Attributes) bool {
	return a.GetSubresource() != "" || a.GetResource().GroupResource() == corev1.Resource("bindings")
}

// update lets clients with the right to initialize finish an object that waits. Other clients may write its
// subresources as usual, as long as its list of initializers stays the same.
func (p *initialize) update(ctx context.Context, a admission.Attributes, obj metav1.Object) error {
	old, err := meta.Accessor(a.GetOldObject())
	if err != nil {
		return nil
	}
	text, has := obj.GetAnnotations()[initializers.Annotation]
	before, had := old.GetAnnotations()[initializers.Annotation]
	same := has == had && text == before
	was, unreadable := initializers.Of(old)
	switch {
	case !has && !had, same && unreadable != nil, same && a.GetSubresource() != "":
		return nil
	case !has && was.Empty():
		return nil // an invalid list may be removed
	}
	var state *initializers.State
	if has {
		if state, err = initializers.Of(obj); err != nil {
			return invalid(a, err)
		}
	}
	if faults := initializers.ValidateUpdate(state, was); len(faults) > 0 {
		return apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), faults)
	}
	if !was.Empty() {
		if err := p.may(ctx, a, "update to uninitialized resource denied"); err != nil {
			return err
		}
	}
	return initializers.Set(obj, state)
}

// written returns the initializers that a client has set on a new object.
func (p *initialize) written(ctx context.Context, a admission.Attributes, obj metav1.Object, denied string) (*initializers.State, error) {
	if err := p.may(ctx, a, denied); err != nil {
		return nil, err
	}
	state, err := initializers.Of(obj)
	if err != nil {
		return nil, invalid(a, err)
	}
	if faults := initializers.ValidateState(state); len(faults) > 0 {
		return nil, apierrors.NewInvalid(a.GetKind().GroupKind(), a.GetName(), faults)
	}
	return state, nil
}

// may checks that the client has the right to initialize objects of the resource.
func (p *initialize) may(ctx context.Context, a admission.Attributes, denied string) error {
	r := a.GetResource()
	decision, reason, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "initialize", Namespace: a.GetNamespace(), Name: a.GetName(),
		APIGroup: r.Group, APIVersion: r.Version, Resource: r.Resource, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	switch {
	case err != nil:
		reason = err.Error()
	case reason == "":
		reason = `the verb "initialize" is not allowed`
	}
	return apierrors.NewForbidden(r.GroupResource(), a.GetName(), fmt.Errorf("%s: %s", denied, reason))
}

// Validate implements admission.ValidationInterface. It checks InitializerConfigurations before they are stored.
func (p *initialize) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	return looked(a, initializers.Kind, initializers.Resource, func(text []byte) (field.ErrorList, error) {
		c, err := initializers.Decode(text)
		if err != nil {
			return nil, err
		}
		return initializers.Validate(c), nil
	})
}

// looked passes the JSON of a new object of the kind to faults. The kind's CustomResourceDefinition cannot express all
// its rules.
func looked(a admission.Attributes, kind schema.GroupVersionKind, resource schema.GroupVersionResource, faults func([]byte) (field.ErrorList, error)) error {
	if a.GetResource().GroupResource() != resource.GroupResource() || a.GetSubresource() != "" {
		return nil
	}
	text, err := json.Marshal(a.GetObject())
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	found, err := faults(text)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if len(found) > 0 {
		return apierrors.NewInvalid(kind.GroupKind(), a.GetName(), found)
	}
	return nil
}

func invalid(a admission.Attributes, err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s %q: %v", a.GetResource().GroupResource(), a.GetName(), err))
}

// isServer reports whether the API server itself creates the object. Such objects do not wait, because no initializer
// can run before they exist.
func isServer(u user.Info) bool {
	return u != nil && u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// configurations reads InitializerConfigurations and caches the decoded ones until they change.
type configurations struct {
	stored *listers.Indexer

	mu   sync.Mutex
	kept map[string]kept
}

type kept struct {
	revision int64
	is       *initializers.Configuration
}

func (c *configurations) names(r schema.GroupVersionResource) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*initializers.Configuration
	var failed error
	now := map[string]kept{}
	c.stored.EachVersion("", func(key string, value []byte, revision int64) bool {
		k := c.kept[key]
		if k.is == nil || k.revision != revision {
			is, err := initializers.Decode(value)
			if err != nil {
				failed = fmt.Errorf("InitializerConfiguration %s cannot be used: %w; correct or delete it", path.Base(key), err)
				return false
			}
			k = kept{revision, is}
		}
		now[key] = k
		all = append(all, k.is)
		return true
	})
	if failed != nil {
		return nil, failed
	}
	if c.kept = nil; len(now) > 0 {
		c.kept = now
	}
	return initializers.Names(all, r), nil
}
