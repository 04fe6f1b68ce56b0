{{/*
The pod of a job that runs the command line: (dict "root" $ "component" "topics" "container" TEXT). With "secretOptional"
it starts also where the secrets of TLS and of the administrator are not there; with "anonymous" it has no API key. With
"kubernetesCa" it has the certificates of the API server's authority.
*/}}
{{- define "headrace.jobPod" -}}
metadata:
  labels:
    {{- include "headrace.podLabels" (dict "root" .root "component" .component "values" .root.Values.jobs) | nindent 4 }}
spec:
  {{- include "headrace.jobPodSpec" . | nindent 2 }}
{{- end -}}

{{/*
How `headrace` reaches the cluster, and with "hasKey" as its administrator, in a container that has the certificates and the
secret mounted: (dict "root" $ "hasKey" true).
*/}}
{{- define "headrace.clientEnvironment" -}}
{{- $isTls := include "headrace.tls" .root -}}
- {name: HEADRACE_BOOTSTRAP_SERVERS, value: {{ include "headrace.bootstrap" .root | quote }}}
{{- if $isTls }}
- {name: HEADRACE_SECURITY_PROTOCOL, value: SSL}
- {name: HEADRACE_SSL_CAFILE, value: /etc/headrace-tls/ca.crt}
{{- if eq .root.Values.tls.clientAuth "required" }}
- {name: HEADRACE_SSL_CERTFILE, value: /etc/headrace-tls/tls.crt}
- {name: HEADRACE_SSL_KEYFILE, value: /etc/headrace-tls/tls.key}
{{- end }}
{{- end }}
{{- if .hasKey }}
- {name: HEADRACE_API_KEY_FILE, value: /etc/headrace-admin/api-key}
{{- if not $isTls }}
- {name: HEADRACE_ALLOW_PLAINTEXT_CREDENTIALS, value: "true"}
{{- end }}
{{- end }}
{{- end -}}

{{/* Where and as whom a job's pod runs: (dict "root" $ "restart" "Never"). */}}
{{- define "headrace.jobPlace" -}}
restartPolicy: {{ .restart }}
serviceAccountName: default
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.jobs.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.jobs.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "headrace.podSecurity" .root | nindent 2 }}
{{- end -}}

{{- define "headrace.jobPodSpec" -}}
{{- $hasKey := and (include "headrace.hasAdmin" .root) (not .anonymous) }}
{{ include "headrace.jobPlace" (dict "root" .root "restart" "Never") }}
containers:
  - name: {{ .component }}
    image: {{ include "headrace.image" (dict "image" .root.Values.image "tag" .root.Chart.AppVersion) }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    {{- .container | nindent 4 }}
    env:
      - {name: HOME, value: /tmp}
      {{- include "headrace.clientEnvironment" (dict "root" .root "hasKey" $hasKey) | nindent 6 }}
    resources:
      {{- toYaml .root.Values.jobs.resources | nindent 6 }}
    securityContext:
      {{- include "headrace.containerSecurity" .root | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
      {{- if $hasKey }}
      - {name: admin, mountPath: /etc/headrace-admin, readOnly: true}
      {{- end }}
      {{- if .kubernetesCa }}
      - {name: kubernetes-ca, mountPath: /etc/kubernetes-ca, readOnly: true}
      {{- end }}
      {{- if include "headrace.tls" .root }}
      - {name: tls, mountPath: /etc/headrace-tls, readOnly: true}
      {{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: 16Mi}
  {{- if $hasKey }}
  - name: admin
    secret: {secretName: {{ include "headrace.adminSecret" .root }}, defaultMode: 0440{{ if .secretOptional }}, optional: true{{ end }}}
  {{- end }}
  {{- if .kubernetesCa }}
  - name: kubernetes-ca
    configMap: {name: kube-root-ca.crt}
  {{- end }}
  {{- if include "headrace.tls" .root }}
  - name: tls
    secret: {secretName: {{ include "headrace.tlsSecret" .root }}, defaultMode: 0440{{ if .secretOptional }}, optional: true{{ end }}}
  {{- end }}
{{- end -}}

{{/* A pod of backups, but for its containers: (dict "root" $ "restart" "Never"). */}}
{{- define "headrace.backupPodSpec" -}}
{{ include "headrace.jobPlace" . }}
volumes:
  - name: backup
    persistentVolumeClaim: {claimName: {{ .root.Values.backup.claimName }}}
  {{- if include "headrace.etcdTls" .root }}
  - name: tls
    secret: {secretName: {{ include "headrace.tlsSecret" .root }}, defaultMode: 0440}
  {{- end }}
{{- end -}}

{{/* What all containers of backups have in common. */}}
{{- define "headrace.backupStep" -}}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
  {{- toYaml .Values.jobs.resources | nindent 2 }}
securityContext:
  {{- include "headrace.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: backup, mountPath: /backup}
{{- end -}}
