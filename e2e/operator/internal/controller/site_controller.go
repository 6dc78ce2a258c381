// Package controller makes the cluster look as Sites say.
package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	webv1 "example.com/site-operator/api/v1"
)

// SiteReconciler reconciles Sites.
type SiteReconciler struct {
	client.Client
	Scheme    *runtime.Scheme
	Recorder  events.EventRecorder
	Namespace string // the operator's own, where the directory is
}

// +kubebuilder:rbac:groups=web.example.com,resources=sites,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=web.example.com,resources=sites/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=web.example.com,resources=sites/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups="",resources=services;configmaps,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

// Reconcile makes the objects of one Site as they should be, and reports.
func (r *SiteReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	site := &webv1.Site{}
	if err := r.Get(ctx, req.NamespacedName, site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.finish(ctx, site)
	}
	if controllerutil.AddFinalizer(site, webv1.Finalizer) {
		if err := r.Update(ctx, site); err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := r.enter(ctx, site); err != nil {
		return ctrl.Result{}, fmt.Errorf("directory: %w", err)
	}
	if err := r.Apply(ctx, r.configMap(site), client.FieldOwner("site-operator"), client.ForceOwnership); err != nil {
		return ctrl.Result{}, fmt.Errorf("config map: %w", err)
	}
	if err := r.Apply(ctx, r.service(site), client.FieldOwner("site-operator"), client.ForceOwnership); err != nil {
		return ctrl.Result{}, fmt.Errorf("service: %w", err)
	}
	deployment, err := r.deploy(ctx, site)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("deployment: %w", err)
	}
	return ctrl.Result{}, r.report(ctx, site, deployment)
}

// deploy creates or updates the Deployment.
func (r *SiteReconciler) deploy(ctx context.Context, site *webv1.Site) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: site.Name, Namespace: site.Namespace}}
	result, err := controllerutil.CreateOrUpdate(ctx, r.Client, d, func() error {
		d.Labels = podLabels(site)
		d.Spec.Replicas = site.Spec.Replicas
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: podLabels(site)}
		d.Spec.Template.Labels = podLabels(site)
		sum := sha256.Sum256([]byte(site.Spec.Message))
		d.Spec.Template.Annotations = map[string]string{"web.example.com/message": hex.EncodeToString(sum[:8])}
		containers(site, &d.Spec.Template.Spec)
		return controllerutil.SetControllerReference(site, d, r.Scheme)
	})
	if err == nil && result != controllerutil.OperationResultNone {
		log.FromContext(ctx).Info("deployment is "+string(result), "site", site.Name)
		r.Recorder.Eventf(site, d, corev1.EventTypeNormal, "Deployed", "Deploy", "Deployment %s is %s", d.Name, result)
	}
	return d, err
}

// report writes the status, if it has changed.
func (r *SiteReconciler) report(ctx context.Context, site *webv1.Site, d *appsv1.Deployment) error {
	before := site.DeepCopy()
	wanted := int32(1)
	if site.Spec.Replicas != nil {
		wanted = *site.Spec.Replicas
	}
	condition := metav1.Condition{
		Type: webv1.ConditionAvailable, Status: metav1.ConditionFalse, ObservedGeneration: site.Generation,
		Reason: "Starting", Message: fmt.Sprintf("%d of %d pods answer", d.Status.AvailableReplicas, wanted),
	}
	current := d.Status.ObservedGeneration >= d.Generation
	if current && d.Status.UpdatedReplicas == wanted && d.Status.AvailableReplicas == wanted && d.Status.Replicas == wanted {
		condition.Status, condition.Reason = metav1.ConditionTrue, "AllPodsAnswer"
	}
	was := meta.IsStatusConditionTrue(site.Status.Conditions, webv1.ConditionAvailable)
	meta.SetStatusCondition(&site.Status.Conditions, condition)
	site.Status.ObservedGeneration = site.Generation
	site.Status.Replicas = d.Status.Replicas
	site.Status.Selector = labels.SelectorFromSet(podLabels(site)).String()
	site.Status.URL = fmt.Sprintf("http://%s.%s:%d", site.Name, site.Namespace, site.Spec.Port)
	if equality.Semantic.DeepEqual(before.Status, site.Status) {
		return nil
	}
	if err := r.Status().Patch(ctx, site, client.MergeFrom(before)); err != nil {
		return client.IgnoreNotFound(err)
	}
	if now := condition.Status == metav1.ConditionTrue; now && !was {
		r.Recorder.Eventf(site, nil, corev1.EventTypeNormal, "Available", "Report", "%s", condition.Message)
	}
	return nil
}

// finish takes the Site out of the directory and lets it go. What it owns goes
// by the cluster's garbage collection.
func (r *SiteReconciler) finish(ctx context.Context, site *webv1.Site) error {
	if !controllerutil.ContainsFinalizer(site, webv1.Finalizer) {
		return nil
	}
	if err := r.leave(ctx, site); err != nil {
		return fmt.Errorf("directory: %w", err)
	}
	r.Recorder.Eventf(site, nil, corev1.EventTypeNormal, "Removed", "Finish", "%s is out of the directory", site.Spec.Host)
	controllerutil.RemoveFinalizer(site, webv1.Finalizer)
	return client.IgnoreNotFound(r.Update(ctx, site))
}

// SetupWithManager says what the reconciler follows.
func (r *SiteReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&webv1.Site{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}, builder.OnlyMetadata).
		Named("site").
		Complete(r)
}
