// Package rootca publishes the certificate by which pods know the API server.
//
// It watches Namespaces and the ConfigMaps named kube-root-ca.crt, and writes only those ConfigMaps. It never touches any
// other ConfigMap and never deletes one: the namespace's end does.
//
// Goroutines: one work loop, and the informer of those ConfigMaps.
package rootca

import (
	"context"
	"errors"
	"maps"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/clusterkeys"
	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	name          = "kube-root-ca.crt"
	file          = "ca.crt"
	annotation    = "kubernetes.io/description"
	inDescription = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

type controller struct {
	env        workqueue.Env
	keys       clusterkeys.Source
	namespaces corelisters.NamespaceLister
	configMaps corelisters.ConfigMapLister
	loop       *workqueue.Loop[string]
}

// New returns the publisher of the bundle of CAs that count.
func New(env workqueue.Env, workers int, keys clusterkeys.Source) (workqueue.Runner, error) {
	namespaces := env.Informers.Core().V1().Namespaces()
	configMaps := coreinformers.NewFilteredConfigMapInformer(env.Reader, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		})
	c := &controller{
		env: env, keys: keys,
		namespaces: namespaces.Lister(), configMaps: corelisters.NewConfigMapLister(configMaps.GetIndexer()),
	}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return workqueue.RunAll(workqueue.Informer(configMaps), c.loop, keys.Follow(c.all)), errors.Join(
		configMaps.SetTransform(workqueue.Strip),
		workqueue.Watch(c.loop, namespaces.Informer(), func(_, now *v1.Namespace) {
			if now != nil {
				c.loop.Add(now.Name)
			}
		}),
		workqueue.Watch(c.loop, configMaps, func(old, now *v1.ConfigMap) {
			if latest := workqueue.Newest(old, now); latest.Name == name {
				c.loop.Add(latest.Namespace)
			}
		}),
	)
}

// all looks at every namespace: the bundle has changed.
func (c *controller) all() {
	list, err := c.namespaces.List(labels.Everything())
	if err != nil {
		return // a lister of memory has no errors
	}
	for _, ns := range list {
		c.loop.Add(ns.Name)
	}
}

func (c *controller) reconcile(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == v1.NamespaceTerminating {
		return nil
	}
	if err != nil {
		return err
	}
	client, bundle := c.env.Client.CoreV1().ConfigMaps(namespace), string(c.keys.Bundle())
	have, err := c.configMaps.ConfigMaps(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, wanted(namespace, bundle, nil), metav1.CreateOptions{})
	case err == nil && !good(have, bundle):
		_, err = client.Update(ctx, wanted(namespace, bundle, have), metav1.UpdateOptions{})
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) || controllerref.NamespaceEnding(err) {
		return nil
	}
	return err
}

func good(have *v1.ConfigMap, bundle string) bool {
	return len(have.Data) == 1 && have.Data[file] == bundle && have.Annotations[annotation] != ""
}

func wanted(namespace, bundle string, have *v1.ConfigMap) *v1.ConfigMap {
	cm := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if have != nil {
		cm = have.DeepCopy()
	}
	cm.Annotations = maps.Clone(cm.Annotations)
	if cm.Annotations == nil {
		cm.Annotations = map[string]string{}
	}
	cm.Annotations[annotation] = inDescription
	cm.Data = map[string]string{file: bundle}
	return cm
}
